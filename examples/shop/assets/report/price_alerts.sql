/* servo
description: Products that a partner sells for less than the shop.
owners: [pricing@example.com]
*/
SELECT p.name, o.price_cents, o.own_price_cents, o.own_price_cents - o.price_cents AS difference_cents
FROM mart.partner_offers o JOIN clean.products p USING (product_id)
WHERE o.price_cents < o.own_price_cents
ORDER BY difference_cents DESC
