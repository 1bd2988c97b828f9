/* servo
description: Returns, one for each order at most.
checks:
  - unique: [order_id]
  - accepted_values: {column: reason, values: [broken, late, regret]}
*/
SELECT order_id, returned_on, reason
FROM raw.returns
