/* servo
description: Prices of one partner, beside the shop's own.
partitions:
  partner: {dynamic: partners}
checks:
  - not_null: [price_cents]
*/
SELECT o.product_id, p.name, o.price_cents, p.price_cents AS own_price_cents
FROM raw.partner_prices o JOIN clean.products p USING (product_id)
