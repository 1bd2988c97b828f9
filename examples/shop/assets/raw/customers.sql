/* servo
description: Customers as the shop exports them.
tags: [pii]
*/
FROM read_csv('data/customers.csv')
