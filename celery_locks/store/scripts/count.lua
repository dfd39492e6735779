-- count: add to the metrics of this prefix, once, however often the call is repeated.
-- KEYS metrics            hash    "<series>\t<task>\t<label>" -> number   the sums over all processes
--      metrics:<process>  string  the number of the last batch of a process
-- ARGV 1 number of the batch  2 ms to remember that number  3 ms to keep the counts
--      4 most fields: further new ones are counted under the task "(other)"
--      then [series, task, label, amount]...
-- returns 1 counted, 0 the batch was counted before

--keys metrics last

if tonumber(redis.call('GET', last) or 0) >= tonumber(ARGV[1]) then return 0 end
local room = tonumber(ARGV[4]) - redis.call('HLEN', metrics)
for i = 5, #ARGV, 4 do
  local field = ARGV[i] .. '\t' .. ARGV[i + 1] .. '\t' .. ARGV[i + 2]
  if redis.call('HEXISTS', metrics, field) == 0 then
    if room <= 0 then field = ARGV[i] .. '\t(other)\t' .. ARGV[i + 2] end
    room = room - 1
  end
  redis.call('HINCRBY', metrics, field, ARGV[i + 3])
end
redis.call('PEXPIRE', metrics, ARGV[3])
redis.call('SET', last, ARGV[1], 'PX', ARGV[2])
return 1
