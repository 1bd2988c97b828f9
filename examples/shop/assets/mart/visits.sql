/* servo
description: Visits of both sites by day.
*/
SELECT 'eu' AS site, * FROM mart.visits_eu
UNION ALL BY NAME
SELECT 'us' AS site, * FROM mart.visits_us
