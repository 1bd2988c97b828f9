/* servo
description: One day, checked, with units in the column names. An impossible value fails the partition of its day only.
owners: [weather@example.com]
partitions:
  daily: {start: 2012-01-01, end: 2015-12-31, timezone: UTC}
*/
SELECT
    location AS city,
    date,
    CASE
        WHEN temp_min > temp_max THEN error(format('{} on {}: the minimum is above the maximum', location, date))
        WHEN precipitation < 0 THEN error(format('{} on {}: the precipitation is negative', location, date))
        ELSE temp_min
    END AS temp_min_c,
    temp_max AS temp_max_c,
    round((temp_min + temp_max) / 2, 2) AS temp_mean_c,
    precipitation AS precipitation_mm,
    precipitation >= 1 AS wet, -- the usual threshold of a wet day, in mm
    temp_min < 0 AS frost,
    wind AS wind_ms,
    weather
FROM raw.observations
WHERE date = getvariable('date')
ORDER BY city
