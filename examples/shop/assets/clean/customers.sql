/* servo
description: Customers without personal data.
checks:
  - unique: [customer_id]
  - accepted_values: {column: country, values: [FR, DE, ES, IT, NL]}
*/
SELECT customer_id, country, since
FROM raw.customers
