/* servo
description: The paid orders.
*/
-- An asset can be partitioned by day. A run then materializes only the days that you select
-- (servo run clean/orders -p date=2025-01-02). To try it, add to the block above:
--     partitions:
--       daily: {start: 2025-01-01, end: 2025-01-03}
-- and to the query: AND day = getvariable('date')
SELECT id, customer, day, cents
FROM raw.orders
WHERE cents > 0
ORDER BY id
