/* servo
description: The orders as they came, a row an order. Files are named relative to the project.
*/
SELECT *
FROM read_csv('data/orders.csv', header = true, columns = {
    'id': 'BIGINT', 'customer': 'VARCHAR', 'day': 'DATE', 'cents': 'BIGINT'
})
