/* servo
description: Products with cost and price in cents.
*/
FROM read_csv('data/products.csv')
