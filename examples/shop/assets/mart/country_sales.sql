/* servo
description: Customers and revenue of each country.
tags: [gold]
*/
SELECT country, count(*) AS customers, sum(amount_cents) AS amount_cents
FROM mart.customer_value
GROUP BY country
