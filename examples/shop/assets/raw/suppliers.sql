/* servo
description: Suppliers of the products.
*/
FROM read_csv('data/suppliers.csv')
