/* servo
description: The weather as published, one row for each city and day.
owners: [weather@example.com]
tags: [noaa]
retries: {max_attempts: 3, initial_delay: 2s, max_delay: 30s}
checks:
  - not_null: [location, date]
  - unique: [location, date]
  - range: {column: precipitation, min: 0}
  - accepted_values: {column: weather, values: [drizzle, fog, rain, snow, sun]}
*/
SELECT *
FROM read_csv(
    'data/weather.csv',
    header = true,
    columns = {
        'location': 'VARCHAR', 'date': 'DATE', 'precipitation': 'DOUBLE',
        'temp_max': 'DOUBLE', 'temp_min': 'DOUBLE', 'wind': 'DOUBLE', 'weather': 'VARCHAR'
    }
)
