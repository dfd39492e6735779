-- pauses: the patterns that operators have paused, of one shard. Read-only.
-- returns [glob, marker without its first word]..., without those whose time is over

--keys patterns
--include clock
--include overrides

local reply, all = {}, redis.call('HGETALL', patterns)
for i = 1, #all, 2 do
  if not is_over(all[i + 1]) then
    reply[#reply + 1] = all[i]
    reply[#reply + 1] = all[i + 1]
  end
end
return reply
