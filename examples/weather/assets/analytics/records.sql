/* servo
description: Each city's warmest, coldest, wettest and driest complete month.
*/
WITH ranked AS (
    FROM analytics.monthly
    WHERE complete
)
SELECT city, 'warmest' AS record, arg_max(month, temp_mean_c) AS month, max(temp_mean_c) AS value, '°C' AS unit FROM ranked GROUP BY city
UNION ALL
SELECT city, 'coldest', arg_min(month, temp_mean_c), min(temp_mean_c), '°C' FROM ranked GROUP BY city
UNION ALL
SELECT city, 'wettest', arg_max(month, precipitation_mm), max(precipitation_mm), 'mm' FROM ranked GROUP BY city
UNION ALL
SELECT city, 'driest', arg_min(month, precipitation_mm), min(precipitation_mm), 'mm' FROM ranked GROUP BY city
ORDER BY city, record
