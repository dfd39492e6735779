-- Part of acquire: the options of a call, by name; each is a list of its keys and then its values.

-- How many keys and how many values an option has.
local SIZES = {
  wait = {0, 1}, ended = {1, 0}, release = {2, 1}, replace = {2, 1}, supersede = {1, 1}, once = {1, 2},
}
local options, next_key, next_value = {}, 9, 3
while ARGV[next_value] do
  local option, size = {}, SIZES[ARGV[next_value]]
  options[ARGV[next_value]] = option
  for i = next_key, next_key + size[1] - 1 do option[#option + 1] = KEYS[i] end
  for i = next_value + 1, next_value + size[2] do option[#option + 1] = ARGV[i] end
  next_key, next_value = next_key + size[1], next_value + 1 + size[2]
end
