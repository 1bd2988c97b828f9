/* servo
description: >-
  How far each complete month departs from the mean of the same calendar month in all complete years.
  With fewer than two years, the departures are NULL.
*/
WITH usual AS (
    SELECT
        city,
        month(month) AS calendar_month,
        count(*) AS years,
        avg(temp_mean_c) AS temp_mean_c,
        avg(precipitation_mm) AS precipitation_mm
    FROM analytics.monthly
    WHERE complete
    GROUP BY city, calendar_month
)
SELECT
    m.city,
    m.month,
    u.years,
    round(u.temp_mean_c, 2) AS usual_temp_c,
    round(u.precipitation_mm, 1) AS usual_precipitation_mm,
    if(u.years >= 2, round(m.temp_mean_c - u.temp_mean_c, 2), NULL) AS temp_anomaly_c,
    if(u.years >= 2, round(m.precipitation_mm - u.precipitation_mm, 1), NULL) AS precipitation_anomaly_mm
FROM analytics.monthly AS m
JOIN usual AS u ON u.city = m.city AND u.calendar_month = month(m.month)
WHERE m.complete
ORDER BY m.city, m.month
