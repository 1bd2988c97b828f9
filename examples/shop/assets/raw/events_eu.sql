/* servo
description: Page views of the European site in one hour of Paris.
partitions:
  hour: {hourly: {start: 2025-03-29, end: 2025-03-31, timezone: Europe/Paris}}
*/
FROM read_csv('data/events_eu.csv')
WHERE seen_at >= getvariable('hour_start') AND seen_at < getvariable('hour_end')
