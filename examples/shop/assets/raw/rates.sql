/* servo
description: Exchange rates, as units of a currency for one euro.
*/
FROM read_csv('data/rates.csv')
