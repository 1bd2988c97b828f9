/* servo
description: Page views of one hour, with the step of the purchase that they belong to.
partitions:
  hour: {hourly: {start: 2025-03-08, end: 2025-03-10, timezone: America/New_York}}
checks:
  - not_null: [step]
*/
SELECT seen_at, visitor, page, list_position(['home', 'search', 'product', 'basket', 'paid'], page) AS step
FROM raw.events_us
