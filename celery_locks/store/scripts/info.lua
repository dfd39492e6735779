-- info: one lock as it is now.
-- ARGV 1 name
-- returns {now, describe(name)}

--include common
--include describe

return {now(), describe(ARGV[1])}
