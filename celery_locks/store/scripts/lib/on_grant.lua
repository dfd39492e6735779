-- Part of acquire: the side effects of a grant. Nothing without extras.

-- The attempt number for the mark of a superseded message: above every real one.
-- SUPERSEDED in commands/requests.py is the same number.
local SUPERSEDED = 1000000000000000

-- With `never`, mark the start too: a run whose process is killed must not be repeated.
local function mark_started()
  if ARGV[13] == 'never' then
    leave_mark(ARGV[12], 'b' .. token .. ' ' .. job .. ' ' .. attempt, ARGV[14])
  end
end

-- Release the reservation of a message that starts, and mark the message that it superseded as ended.
local function on_grant()
  if not has_extras then return end
  mark_started()
  if ARGV[8] ~= '' then
    if redis.call('ZREM', root .. 'h:' .. ARGV[7], ARGV[8]) == 1 then pass_on(ARGV[7]) end
    redis.call('HDEL', records, ARGV[8])
  end
  if ARGV[10] ~= '' then
    redis.call('SET', root .. 'd:' .. ARGV[10], string.format('%.0f', SUPERSEDED), 'PX', ARGV[11])
  end
end
