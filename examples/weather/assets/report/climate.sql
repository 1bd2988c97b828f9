/* servo
description: The records, and how unusual each was for the time of year.
owners: [weather@example.com]
tags: [report]
priority: 10
deadline: {by: "09:00", timezone: America/Los_Angeles}   # by then, the output must be fresh every day
*/
SELECT
    r.city,
    r.record,
    r.month,
    r.value,
    r.unit,
    if(r.unit = 'mm', a.precipitation_anomaly_mm, a.temp_anomaly_c) AS departure,
    format('{} was the {} month in {}: {} {}', strftime(r.month, '%B %Y'), r.record, r.city, r.value, r.unit)
        || coalesce(format(', {:+.1f} {} from what is usual', departure, r.unit), '') AS sentence
FROM analytics.records AS r
LEFT JOIN analytics.anomalies AS a USING (city, month)
ORDER BY r.city, r.record
