/* servo
description: Units, revenue and margin of each product.
*/
SELECT p.product_id, p.name, p.category, p.supplier, coalesce(sum(l.quantity), 0) AS units,
    coalesce(sum(l.amount_cents), 0) AS amount_cents, coalesce(sum(l.margin_cents), 0) AS margin_cents
FROM clean.products p LEFT JOIN clean.lines l USING (product_id)
GROUP BY ALL
