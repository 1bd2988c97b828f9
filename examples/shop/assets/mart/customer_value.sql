/* servo
description: Orders and revenue of each customer.
checks:
  - unique: [customer_id]
*/
SELECT c.customer_id, c.country, count(o.order_id) AS orders, coalesce(sum(o.amount_cents), 0) AS amount_cents
FROM clean.customers c LEFT JOIN clean.orders o USING (customer_id)
GROUP BY ALL
