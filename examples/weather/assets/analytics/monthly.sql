/* servo
description: The figures of each city and month. A month is complete if none of its days is missing.
requires: available # incomplete months are marked
checks:
  - unique: [city, month]
  - {name: low_below_high, sql: SELECT * FROM analytics.monthly WHERE temp_low_c > temp_high_c}
*/
SELECT
    city,
    date_trunc('month', date)::DATE AS month,
    count(*) AS days,
    count(*) = day(last_day(month)) AS complete,
    round(avg(temp_mean_c), 2) AS temp_mean_c,
    round(avg(temp_min_c), 2) AS temp_low_c,
    round(avg(temp_max_c), 2) AS temp_high_c,
    min(temp_min_c) AS coldest_c,
    max(temp_max_c) AS hottest_c,
    round(sum(precipitation_mm), 1) AS precipitation_mm,
    count_if(wet) AS wet_days,
    count_if(frost) AS frost_days,
    count_if(weather = 'sun') AS sunny_days
FROM clean.daily
GROUP BY city, month
ORDER BY city, month
