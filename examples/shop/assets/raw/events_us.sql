/* servo
description: Page views of the American site in one hour of New York.
partitions:
  hour: {hourly: {start: 2025-03-08, end: 2025-03-10, timezone: America/New_York}}
*/
FROM read_csv('data/events_us.csv')
WHERE seen_at >= getvariable('hour_start') AND seen_at < getvariable('hour_end')
