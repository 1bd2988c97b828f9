/* servo
description: Orders that came back.
*/
FROM read_csv('data/returns.csv')
