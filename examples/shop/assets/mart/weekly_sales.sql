/* servo
description: Orders and revenue of one week, from its days.
partitions:
  week: {weekly: {start: 2025-03-24, end: 2025-03-31, timezone: Europe/Paris}}
deps:
  - {asset: mart/daily_sales, map: {week: {coarsen: date}}}
tags: [gold]
*/
SELECT channel, sum(orders) AS orders, sum(amount_cents) AS amount_cents
FROM mart.daily_sales
GROUP BY channel
