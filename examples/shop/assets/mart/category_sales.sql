/* servo
description: Revenue and margin of each category.
tags: [gold]
*/
SELECT category, sum(units) AS units, sum(amount_cents) AS amount_cents, sum(margin_cents) AS margin_cents
FROM mart.product_sales
GROUP BY category
