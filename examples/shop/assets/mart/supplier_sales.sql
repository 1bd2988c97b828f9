/* servo
description: Revenue and margin of each supplier.
*/
SELECT supplier, sum(amount_cents) AS amount_cents, sum(margin_cents) AS margin_cents
FROM mart.product_sales
GROUP BY supplier
