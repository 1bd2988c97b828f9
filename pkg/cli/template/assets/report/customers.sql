/* servo
description: What each customer has spent. Servo reads the dependency on clean/orders from the query.
*/
SELECT customer, count(*) AS orders, sum(cents) / 100 AS spent
FROM clean.orders
GROUP BY customer
ORDER BY spent DESC
