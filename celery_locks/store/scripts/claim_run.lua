-- claim_run: record that the holder of a beat's lock sends this run of an entry. May be repeated.
-- KEYS h:<name> b:<name> (share_runs.lua)
-- ARGV 1 token  2 entry  3 the record that it replaces, '' for none  4 the new record
-- returns 1 claimed, 0 another record is there, -1 the token does not hold the lock

--keys held runs
--include is_holder

local current = redis.call('HGET', runs, ARGV[2]) or ''
if current == ARGV[4] then return 1 end -- the reply to an earlier call was lost
if not holds(ARGV[1]) then return -1 end
if current ~= ARGV[3] then return 0 end
redis.call('HSET', runs, ARGV[2], ARGV[4])
return 1
