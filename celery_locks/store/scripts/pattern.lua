-- pattern: an operator pauses the locks whose names match a glob, or ends that; in one shard. Safe to
-- repeat with one request id.
-- KEYS saved is p:<request id> (saved_replies.lua)
-- ARGV 1 glob  2 '1' to set it, '0' to end it  3 ms until it ends by itself, or 0
--      4 about, as in a marker (overrides.lua)  5 by whom, 6 why: for the log
--      7 '1' to write the log entry: one shard does
-- returns {1 if the pattern was set before, else 0}, {-1} if there are too many
--
-- It applies to every call from now on. For names with waiters and holders the caller then calls
-- apply_patterns.lua.

--keys records fence log patterns saved
--include clock
--include saved_replies
--include action_log
--include overrides
--include change_patterns

-- Each is compared with the name of each call.
local MAX_PATTERNS = 100

local earlier = saved_reply(saved)
if earlier then return earlier end
local glob, ends = ARGV[1], tonumber(ARGV[3])
local before = redis.call('HGET', patterns, glob)
local was_set = before and not is_over(before)
if ARGV[2] == '0' then
  drop_patterns({glob})
elseif not before and redis.call('HLEN', patterns) >= MAX_PATTERNS then
  return {-1}
else
  ends = ends > 0 and now() + ends or 0
  redis.call('HSET', patterns, glob, string.format('%.0f %.0f 0 %s', ends, now(), ARGV[4]))
  flag_fence()
end
if ARGV[7] == '1' and (was_set or ARGV[2] == '1') then
  local action = ARGV[2] == '1' and 'pause' or 'resume'
  log_action(action, glob, ARGV[5], ARGV[6], {}, {'limit', 0, 'until', string.format('%.0f', ends)})
end
return save_reply(saved, {was_set and 1 or 0})
