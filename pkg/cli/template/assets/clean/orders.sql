/* servo
description: The orders that were paid.
*/
-- An asset can have a partition a day, each made on its own and only when asked for
-- (servo run clean/orders -p date=2025-01-02). Add to the block above:
--     partitions:
--       daily: {start: 2025-01-01, end: 2025-01-03}
-- and to the query: AND day = getvariable('date')
SELECT id, customer, day, cents
FROM raw.orders
WHERE cents > 0
ORDER BY id
