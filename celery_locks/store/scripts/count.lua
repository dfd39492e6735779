-- count: add to the metrics of this prefix, once, however often the call is repeated.
-- Besides the keys in common.lua:
--   metrics            hash    "<series>\t<task>\t<label>" -> number   the sums over all processes
--   metrics:<process>  string  the number of the last batch of a process
-- ARGV 1 process  2 number of the batch  3 ms to remember that number  4 ms to keep the counts
--      5 most fields: further new ones are counted under the task "(other)"
--      then [series, task, label, amount]...
-- returns 1 counted, 0 the batch was counted before

local root = KEYS[1]
local counts, last = root .. 'metrics', root .. 'metrics:' .. ARGV[1]
if tonumber(redis.call('GET', last) or 0) >= tonumber(ARGV[2]) then return 0 end
local room = tonumber(ARGV[5]) - redis.call('HLEN', counts)
for i = 6, #ARGV, 4 do
  local field = ARGV[i] .. '\t' .. ARGV[i + 1] .. '\t' .. ARGV[i + 2]
  if redis.call('HEXISTS', counts, field) == 0 then
    if room <= 0 then field = ARGV[i] .. '\t(other)\t' .. ARGV[i + 2] end
    room = room - 1
  end
  redis.call('HINCRBY', counts, field, ARGV[i + 3])
end
redis.call('PEXPIRE', counts, ARGV[4])
redis.call('SET', last, ARGV[2], 'PX', ARGV[3])
return 1
