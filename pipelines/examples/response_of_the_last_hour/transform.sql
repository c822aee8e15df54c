-- S10: a request that came exactly an hour before still counts; requests of the same time see each other.
SELECT
  window_start,
  window_end,
  endpoint,
  at,
  request_id,
  count(*) OVER hour AS requests,
  CAST(CAST(sum(response_ms) OVER hour AS DECIMAL(20, 3)) / count(*) OVER hour AS DECIMAL(20, 3)) AS mean_ms
FROM requests
WINDOW hour AS (
  PARTITION BY window_start, endpoint ORDER BY at RANGE BETWEEN INTERVAL 1 HOUR PRECEDING AND CURRENT ROW
)
