/* servo
description: Returned orders by reason, with the revenue lost.
*/
SELECT r.reason, count(*) AS orders, sum(o.amount_cents) AS amount_cents
FROM clean.returns r JOIN clean.orders o USING (order_id)
GROUP BY r.reason
