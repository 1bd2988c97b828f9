/* servo
description: The dry and wet spells of each city that last a week or longer. A missing day ends a spell.
requires: available
*/
WITH numbered AS (
    SELECT
        city,
        date,
        wet,
        precipitation_mm,
        -- Consecutive days that are all wet or all dry have the same difference of date and row number.
        date - row_number() OVER (PARTITION BY city, wet ORDER BY date)::INTEGER AS spell
    FROM clean.daily
)
SELECT
    city,
    if(wet, 'wet', 'dry') AS kind,
    min(date) AS first_day,
    max(date) AS last_day,
    count(*) AS days,
    round(sum(precipitation_mm), 1) AS precipitation_mm
FROM numbered
GROUP BY city, wet, spell
HAVING days >= 7
ORDER BY days DESC, city, first_day
