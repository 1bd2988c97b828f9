/* servo
description: Orders of one day, as delivered.
partitions:
  date: {daily: {start: 2025-03-24, end: 2025-04-06, timezone: Europe/Paris}}
*/
FROM read_csv('data/orders/*.csv')
WHERE CAST(ordered_at AS DATE) = getvariable('date')
