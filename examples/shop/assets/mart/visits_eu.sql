/* servo
description: Visitors and page views of one day (23 hours when daylight saving time begins).
partitions:
  date: {daily: {start: 2025-03-29, end: 2025-03-31, timezone: Europe/Paris}}
deps:
  - {asset: clean/events_eu, map: {date: {coarsen: hour}}}
*/
SELECT getvariable('date') AS day, count(DISTINCT date_trunc('hour', seen_at)) AS hours, count(*) AS views,
    count(DISTINCT visitor) AS visitors, count(*) FILTER (page = 'paid') AS paid
FROM clean.events_eu
