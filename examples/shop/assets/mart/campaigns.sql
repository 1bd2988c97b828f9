/* servo
description: Revenue of the channel of each campaign while it ran, in euros and dollars.
*/
SELECT c.campaign, c.cost_cents, sum(s.amount_cents) AS amount_cents,
    round(sum(s.amount_cents) * any_value(r.per_euro) / 100, 2) AS amount_usd
FROM raw.campaigns c JOIN mart.daily_sales s ON s.channel = c.channel AND s.day BETWEEN c.first_day AND c.last_day
    CROSS JOIN (SELECT per_euro FROM raw.rates WHERE currency = 'USD') r
GROUP BY ALL
