/* servo
description: Products with their supplier and margin.
checks:
  - unique: [product_id]
  - range: {column: margin_cents, min: 0}
*/
SELECT p.product_id, p.name, p.category, p.cost_cents, p.price_cents, p.price_cents - p.cost_cents AS margin_cents,
    s.name AS supplier
FROM raw.products p JOIN raw.suppliers s USING (supplier_id)
