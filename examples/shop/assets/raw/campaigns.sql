/* servo
description: Advertising campaigns and their costs.
*/
FROM read_csv('data/campaigns.csv')
