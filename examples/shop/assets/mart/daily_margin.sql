/* servo
description: The margin of one day by category.
partitions:
  date: {daily: {start: 2025-03-24, end: 2025-04-06, timezone: Europe/Paris}}
tags: [gold]
*/
SELECT getvariable('date') AS day, category, sum(margin_cents) AS margin_cents, sum(amount_cents) AS amount_cents
FROM clean.lines
GROUP BY category
