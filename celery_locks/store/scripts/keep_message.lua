-- keep_message: keep a message beside its reservation until it starts, so that it can be published again if the
-- broker loses it. May be repeated.
--   kept  hash  token -> "<ms> <message>"  the time at which it was published last
-- The run that starts deletes the entry (the option forget of acquire.lua); whatever else ends the reservation
-- leaves it to scan_kept.lua. So an entry counts only while its reservation exists.
-- ARGV 1 the token of the reservation  2 the message
-- returns 1, or 0 if there is no such reservation

--keys records kept
--include clock

if redis.call('HEXISTS', records, ARGV[1]) == 0 then return 0 end
redis.call('HSET', kept, ARGV[1], string.format('%.0f ', now()) .. ARGV[2])
return 1
