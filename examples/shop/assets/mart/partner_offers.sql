/* servo
description: For each product, the cheapest offer of any partner.
*/
SELECT product_id, min(price_cents) AS price_cents, any_value(own_price_cents) AS own_price_cents
FROM clean.partner_prices
GROUP BY product_id
