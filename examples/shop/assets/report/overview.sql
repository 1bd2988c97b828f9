/* servo
description: The figures of the month on one page.
owners: [board@example.com]
*/
SELECT 'revenue' AS figure, sum(amount_cents) / 100 AS value FROM mart.category_sales
UNION ALL
SELECT 'margin', sum(margin_cents) / 100 FROM mart.category_sales
UNION ALL
SELECT 'returned', sum(amount_cents) / 100 FROM mart.returns
UNION ALL
SELECT 'visitors', sum(visitors) FROM mart.visits
