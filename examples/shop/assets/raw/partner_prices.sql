/* servo
description: The price list of one partner.
partitions:
  partner: {dynamic: partners}
*/
SELECT product_id, price_cents
FROM read_csv('data/partners/*.csv', filename = true)
WHERE filename LIKE '%/' || getvariable('partner') || '.csv'
