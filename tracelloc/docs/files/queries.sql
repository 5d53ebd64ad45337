-- Queries of tables of stacks (tracelloc report *.rec -o stacks.parquet), for DuckDB.

-- What grows, by program
SELECT executable, sum(growth_bytes_per_min) AS growth FROM 'stacks*.parquet'
GROUP BY executable ORDER BY growth DESC;

-- One suspect on many machines
SELECT function, file, line, count(DISTINCT host) AS hosts, sum(bytes) AS bytes
FROM 'stacks*.parquet' WHERE verdict = 'leaking'
GROUP BY ALL ORDER BY hosts DESC, bytes DESC;

-- Before and after a deployment
SELECT stack, sum(CASE WHEN filename LIKE '%after%' THEN bytes ELSE -bytes END) AS change
FROM read_parquet(['stacks-before.parquet', 'stacks-after.parquet'], filename = true)
GROUP BY stack ORDER BY change DESC LIMIT 10;

-- Memory by pod and container
SELECT namespace, pod, container, sum(bytes) AS bytes, sum(allocations) AS blocks
FROM 'stacks*.parquet' GROUP BY ALL ORDER BY bytes DESC;

-- Everything that one function and its callees keep
SELECT host, pid, sum(bytes) AS bytes FROM 'stacks*.parquet'
WHERE list_contains(string_split(stack, ';'), 'main') GROUP BY ALL ORDER BY bytes DESC;

-- Who allocates most often, and frees at once
SELECT function, sum(allocated) AS allocations, sum(temporary_allocations) AS freed_at_once
FROM 'stacks*.parquet' GROUP BY function ORDER BY allocations DESC LIMIT 10;
