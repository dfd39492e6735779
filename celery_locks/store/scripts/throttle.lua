-- throttle: start at a rate, or be promised a start, without a lock. Safe to repeat with one token.
-- KEYS after those below: r:<rate> d:<rate> rates p:<token>   (lib/rates.lua)
-- ARGV 1 job, or token of a caller without one  2 the longest wait in µs for which a start is promised
--      3 limits  4 '0' only to ask: the start is not counted
-- returns {'start', µs from now}: the caller may start then, within a second
--         {'limited', 1, µs, ahead, 1 if promised}: it may ask again then

--keys records
--include clock
--include names
--include rates

local options = {{KEYS[2], KEYS[3], KEYS[4], KEYS[5], ARGV[2], ARGV[3]}}
local reply = rate_limit(options, ARGV[1])
if reply then return reply end
if ARGV[4] == '1' then count_start(options, ARGV[1]) end
return {'start', math.max(0, start_at - micros)}
