/* servo
description: The orders as received, one row per order. Paths are relative to the project.
*/
SELECT *
FROM read_csv('data/orders.csv', header = true, columns = {
    'id': 'BIGINT', 'customer': 'VARCHAR', 'day': 'DATE', 'cents': 'BIGINT'
})
