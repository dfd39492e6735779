-- apply_patterns: give some locks the markers of the patterns that match them now, and end those of
-- patterns that are gone: the next waiters get the lock. May be repeated.
-- KEYS after those below: h:<name>, q:<name> of each lock
-- returns how many locks were resumed

--keys records index fence past usual patterns due
--include clock
--include names
--include common
--include handover
--include patterns
--include change_patterns

local resumed = 0
for i = 8, #KEYS, 2 do
  local held, queue = KEYS[i], KEYS[i + 1]
  local used = redis.call('EXISTS', held, queue) > 0
  local matching = match_patterns(name_of(held))
  if apply_patterns(held, queue, read_markers(held), matching, used) then
    resumed = resumed + 1
    pass_on(held, queue)
  end
end
return resumed
