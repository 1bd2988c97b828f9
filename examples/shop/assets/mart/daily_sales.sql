/* servo
description: Orders and revenue of one day by channel.
partitions:
  date: {daily: {start: 2025-03-24, end: 2025-04-06, timezone: Europe/Paris}}
tags: [gold]
deadline: {by: "09:00", timezone: Europe/Paris}   # of the day after each partition
freshness: {max_lag: 36h}
sla: {task: 10m}
*/
SELECT getvariable('date') AS day, channel, count(*) AS orders, sum(amount_cents) AS amount_cents
FROM clean.orders
GROUP BY channel
