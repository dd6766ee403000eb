"""The corpus: small stories from a grammar of our own, as many as wanted, the same for a seed.

A skeleton is a plot: a list of positions, and every position offers some phrasings. To make a
story, draw a skeleton, a name, an object and a place, then one phrasing for each position, then
a word for each other slot in it. Every draw is uniform and none depends on another:

    skeleton   [("{name} saw a {adj} {object}.", "A {object}!"), ("{She} took the {object}.",)]
    choices    name Nora, object drum, phrasings 0 and 0, words "red"
    story      Nora saw a red drum. She took the drum.
    -ln p      ln 56 names + ln 42 objects + ln 2 phrasings + ln 12 adjectives + ...

So the entropy of a story is an exact sum. It is the loss that no model can get below, because
different choices give different texts: `parse` reads the choices back. The name, the object and
the place return several times in each story, so a reader sees whether a model remembers them.
"""

import math
import re
from dataclasses import dataclass
from functools import cache
from random import Random


def listed(text: str) -> list[str]:
    return text.split()


GIRLS = listed(
    "Ada Anna Bella Clara Ella Eva Greta Ida Jane June Kate Lena Lily Lucy Mia Molly "
    "Nell Nina Nora Pia Polly Rosa Ruby Sally Tess Tilda Wanda Zoe"
)
BOYS = listed(
    "Adam Carl Dan Emil Felix Finn Fred Gus Ivan Jack Jim Leo Max Milo Ned Nick Oscar "
    "Otto Ralph Ron Roy Sam Ted Theo Tim Toby Tom Walt"
)

# Every list below fits every skeleton: objects can be carried, places take "at the" and "to the",
# and objects, adjectives and weather take "a", never "an".
LISTS = {
    "name": GIRLS + BOYS,
    "object": listed(
        "ball basket bell blanket book boot bowl box broom brush bucket button candle clock coin "
        "crown cup doll drum feather flag flute glove hammer hat jar jug kettle key kite lamp "
        "lantern mirror pillow ribbon scarf shell sock spoon teapot trumpet whistle"
    ),
    "place": listed(
        "bakery barn beach bridge castle chapel farm fountain garden harbour inn lake library "
        "lighthouse market mill museum orchard palace park pier pond quarry school stable station "
        "theatre tower vineyard zoo"
    ),
    "adj": listed("big black blue fine funny green little lovely purple red white yellow"),
    "weather": listed("bright cloudy cold foggy frosty rainy sunny warm windy"),
    "day": listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday"),
    "glad": listed("cheerful glad happy merry pleased proud"),
    "sad": listed("cross gloomy sad upset worried"),
    "food": listed("bread cake cheese honey jam pie soup toast"),
    "person": listed("baker cook doctor farmer miller painter postman sailor tailor teacher"),
}
PRONOUNS = {
    "she": ("she", "he"),
    "She": ("She", "He"),
    "her": ("her", "his"),
    "him": ("her", "him"),
    "girl": ("girl", "boy"),
}
REPEATED = ("name", "object", "place")  # drawn once a story; other slots are drawn where they occur

PARAGRAPH = ("\n",)

# Edit freely. The tests check that every story, whatever is chosen, mentions the name, the
# object and the place four times or more, and that it can be read in one way only.
# That a phrasing fits everything chosen before it, only reading aloud can tell.
SKELETONS = {
    "the goose who hatched things": [
        (
            "Once upon a time, {name} put down a {adj} {object} near the {place}.",
            "One {weather} morning, {name} took a {adj} {object} to the {place}.",
        ),
        (
            "A goose came along and sat down on the {object}.",
            "Along came a goose, who sat on the {object} and closed her eyes.",
        ),
        (
            '"That is not an egg," said {name}.',
            '"Please get up," said {name}. "That is not an egg."',
        ),
        (
            '"Everything is an egg," said the goose, "if you love it enough."',
            '"Not yet," said the goose. "You must wait."',
            '"How do you know?" asked the goose. "Have you tried?"',
        ),
        PARAGRAPH,
        (
            "All day {name} begged, but the goose would not leave the {place}.",
            "Then {name} sang her a song, but she would not leave the {place}.",
        ),
        (
            "At last {name} put a potato next to the {object}.",
            "Then {name} laid a round potato beside the {object}.",
        ),
        (
            '"Oh, that one is much prettier," said the goose, and moved over.',
            '"Twins!" cried the goose, and moved over.',
        ),
        PARAGRAPH,
        (
            "So {name} took the {object} home from the {place}, still warm.",
            "That is how {name} left the {place} with the {object}, as warm as toast.",
        ),
        (
            "And the goose is still at the {place}, waiting for her potato to hatch.",
            "If you pass the {place}, walk softly. The potato may hatch any day now.",
        ),
    ],
    "the elephant who hid": [
        (
            "Once upon a time, there was a shy elephant at the {place}.",
            "On {day}, a very shy elephant came to the {place}.",
        ),
        (
            "When {name} came by with a {adj} {object}, it got a fright.",
            "Just then {name} came along with a {adj} {object}.",
        ),
        (
            "It took the {object}, held it up and stood very still.",
            "So it hid behind the {object} and closed its eyes.",
        ),
        PARAGRAPH,
        (
            '"How odd," said {name}. "I heard somebody at the {place}."',
            '"Nobody is at the {place} today," said {name}, who was a polite {girl}.',
        ),
        (
            'The elephant smiled behind the {object}. "I am good at this," it said.',
            '"It works!" whispered the elephant behind the {object}.',
        ),
        (
            "So {name} looked behind the {place}, and under {her} own hat.",
            "So {name} looked behind the {place}, and then under a small stone.",
        ),
        (
            "The elephant laughed so hard that the {object} fell down.",
            "Then the elephant had to sneeze, and the {object} flew over a wall.",
        ),
        PARAGRAPH,
        (
            '"There you are!" cried {name}. "Now I will hide."',
            '"Found you!" cried {name}. "You are the best in the world."',
        ),
        (
            "They played at the {place} until it was dark, and {name} never won.",
            "They played at the {place} until supper, and {name} did not look too hard.",
        ),
    ],
    "the invisible horse": [
        (
            "Once upon a time, {name} met a fox at the {place}.",
            "One {weather} day, a fox was waiting for {name} at the {place}.",
        ),
        (
            '"Give me that {object}," said the fox, "and I will give you an invisible horse."',
            '"I will swap this invisible horse for your {object}," said the fox.',
        ),
        (
            "There was no horse at the {place}, but {name} gave him the {object}.",
            "He pointed at the air by the {place}, and {name} gave him the {object}.",
        ),
        PARAGRAPH,
        (
            "Then {name} climbed up on nothing and rode round the {place}.",
            "Then {name} jumped on and rode three times round the {place}.",
        ),
        (
            '"What a horse!" called {name}. "And it eats almost nothing!"',
            '"Good horse!" called {name}. "It can sing, too, but only for me."',
        ),
        (
            "The fox looked on until he could not bear it.",
            "The fox looked on, and he began to feel {sad}.",
        ),
        (
            '"Take back your {object}," he said, "and give me my horse!"',
            '"I want my horse again!" he cried, and held out the {object}.',
        ),
        PARAGRAPH,
        (
            "So {name} walked home with the {object} under {her} arm.",
            "So {name} took the {object} and wished them both good luck.",
        ),
        (
            "The fox is still at the {place}, looking for the end with the head.",
            "All night at the {place} the fox called for a horse that never came.",
        ),
    ],
    "the polite robber": [
        (
            "Once upon a time, {name} was alone at the {place} with a {adj} {object}.",
            "One dark night, {name} was alone at the {place} with a {adj} {object}.",
        ),
        (
            'Along came a robber. "Give me the {object}!" he said.',
            '"Good evening," said a voice. "I am a robber, and I want that {object}."',
        ),
        (
            '"At the {place} we wipe our boots first," said {name}.',
            '"Nobody robs the {place} in those boots," said {name}. "Wipe them, please."',
        ),
        PARAGRAPH,
        (
            "When they were clean, {name} gave him some {food}, and he told three good jokes.",
            "So he wiped them, and {name} gave him some {food} and heard about his mother.",
        ),
        (
            "He was so {glad} that he swept the whole {place}.",
            "After that he swept the whole {place}, just to be nice.",
        ),
        PARAGRAPH,
        (
            "In the morning {name} saw that the robber had forgotten the {object}.",
            "The robber was far away when {name} saw the {object}, still there.",
        ),
        (
            "Now he comes to the {place} every {day}, and he always forgets it.",
            "On {day} he came to the {place} again, and he brought flowers.",
        ),
        (
            "Nobody ever steals the {object}, and {name} never has to sweep.",
            "So {name} still has the {object}, and a robber for a friend.",
        ),
    ],
    "the duckling who followed": [
        (
            "Once upon a time, a duckling came out of its egg at the {place}.",
            "One {weather} morning, a duckling came out of its egg at the {place}.",
        ),
        (
            'The first thing it saw was a {adj} {object}. "Mother!" it said.',
            'It looked about and saw a {adj} {object}. "Mother!" it said.',
        ),
        (
            "The {object} was {name}'s, and {name} did not know what to say.",
            "It was {name}'s {object}, and {name} had only put it down for a moment.",
        ),
        PARAGRAPH,
        (
            "When {name} took the {object} home from the {place}, the duckling walked behind.",
            "When {name} left the {place} with the {object}, the duckling came too, left, right.",
        ),
        (
            "It followed them to school, and into the bath.",
            "It told them its secrets and gave them half of every worm.",
        ),
        (
            "At last {name} took them both to the {place}.",
            "At last {name} went to the {place} to find a real duck.",
        ),
        PARAGRAPH,
        (
            'There a duck looked hard at the {object}. "Well done," she said.',
            'A duck came and bowed to the {object}. "You are a good mother," she said.',
        ),
        (
            "Now {name} takes the {object} to the {place} every {day}. Family is family.",
            "Every spring {name} takes the {object} to the {place} for a family visit.",
        ),
    ],
    "the gift that came home": [
        (
            "Once upon a time, {name} made a {adj} {object} for the {person}.",
            "On {day}, {name} gave a {adj} {object} to the {person}.",
        ),
        (
            "It was a fine gift, but everyone at the {place} had one already.",
            "It was very kind, but the {place} was full of them.",
        ),
        (
            "So the {object} was wrapped up and left the {place} as a gift for the king.",
            "So the {object} left the {place}, in new paper, for an old uncle.",
        ),
        (
            "He gave it to a sailor, and the sailor gave it to his parrot.",
            "He gave it to his sister, and she gave it to a man with a goat.",
        ),
        PARAGRAPH,
        (
            "A year later {name} had a birthday at the {place}.",
            "Then {name} had a birthday, and the whole {place} was there.",
        ),
        (
            "The last gift was for {name}, and it had nine kinds of paper on it.",
            "The last gift was for {name}, and it took an hour to open.",
        ),
        (
            'It was the {object}. "Just what I wanted!" cried {name}.',
            'Out came the {object}. "I always wished for one!" said {name}.',
        ),
        PARAGRAPH,
        (
            "And it was true, for {name} had missed that {object} every day.",
            "Then {name} hugged the {object}, and everybody looked at the floor.",
        ),
        (
            "It never left the {place} again.",
            "The best things at the {place} always come round twice.",
        ),
    ],
    "the very slow post": [
        (
            "Once upon a time, {name} sat at the {place}, waiting for the post.",
            "On {day}, {name} turned six, and waited at the {place} for the post.",
        ),
        (
            "There was a {adj} {object} on the way, but it came by tortoise.",
            "It was to bring a {adj} {object}, but the postman was a tortoise.",
        ),
        (
            "All day {name} looked up the road to the {place}, but no {object} came.",
            "It got dark at the {place}, and {name} went to bed without a {object}.",
        ),
        PARAGRAPH,
        (
            "The leaves fell, the snow fell, and then {name} heard a cough at the {place}.",
            "A year went by, and then {name} saw something at the {place}. It was not fast.",
        ),
        (
            '"Happy birthday, {name}," said the tortoise. "I ran all the way."',
            '"Good morning, {name}," said the tortoise. "Am I too early?"',
        ),
        (
            '"You are a year late," said {name}, and hugged the {object}.',
            '"My birthday was last year," said {name}, "but what a nice {object}!"',
        ),
        (
            '"Then I am early for the next one," said the tortoise, and sat down to wait.',
            '"Late?" said the tortoise. "It is your birthday again tomorrow. I am early!"',
        ),
        PARAGRAPH,
        (
            "So they had some {food} at the {place}, next to the {object}.",
            "So they lit a candle at the {place} and put the {object} beside it.",
        ),
    ],
    "the cloud who followed": [
        (
            "Once upon a time, a very small cloud fell in love with {name}.",
            "On {day}, the sun was out, but over {name} there was a very small cloud.",
        ),
        (
            "It rained all the way to the {place}, but only on {name}.",
            "At the {place} everybody was dry, and only {name} was wet.",
        ),
        (
            "It rained on {her} nose, and it rained on {her} {adj} {object}.",
            "It rained on {her} hair, and it rained on {her} {adj} {object}.",
        ),
        (
            '"Why me?" asked {name}, and shook the water off the {object}.',
            '"What have I done?" asked {name}, and dried the {object}.',
        ),
        PARAGRAPH,
        (
            '"Nobody else at the {place} ever looks up," said the cloud.',
            '"The big clouds over the {place} never let me play," said the cloud.',
        ),
        (
            "So {name} tied a string to it and led it round the {place}.",
            "Then {name} felt sorry for it, and they walked round the {place} together.",
        ),
        (
            "It watered the roses, and it washed the {object}.",
            "It put out a small fire, and it made the {object} shine.",
        ),
        PARAGRAPH,
        (
            "Soon everyone at the {place} wanted a cloud like that.",
            "Now all the {place} is proud of its own cloud.",
        ),
        (
            "At night it sleeps on the {object}, next to {name}'s bed.",
            "In the evening {name} puts it to bed beside the {object}.",
        ),
    ],
    "the glue": [
        (
            "Once upon a time, {name}'s {adj} {object} came apart at the {place}.",
            "One {weather} day at the {place}, {name} sat down on a {adj} {object}. Crack!",
        ),
        (
            "So {name} took a pot of glue and used it all on the {object}.",
            "Then {name} found some very strong glue to mend the {object}.",
        ),
        (
            "It was as good as new, but now {name} could not let go.",
            "It held very well, and so did {name}, who was stuck to it.",
        ),
        PARAGRAPH,
        (
            "The {person} of the {place} pulled at the {object}, and he got stuck too.",
            "A man from the {place} pulled at the {object}, and then he was stuck too.",
        ),
        (
            "Then came two ducks, and a lady who wanted to know the time.",
            "Then a cow got stuck, and a dog who was only passing by.",
        ),
        (
            "They all hopped round the {place} in a row.",
            "The whole row danced through the {place}.",
        ),
        (
            "It was so funny that they laughed until they cried.",
            "Someone laughed, and soon they all laughed until they cried.",
        ),
        PARAGRAPH,
        (
            "And tears, as {name} found out, are very good against glue.",
            "The tears washed off the glue, and {name} was free at last.",
        ),
        (
            "The {object} stands at the {place}, and nobody may mend it again.",
            "The {object} is still at the {place}, with one feather stuck to it.",
        ),
    ],
    "the giant who snored": [
        (
            "Once upon a time, a giant fell asleep behind the {place}.",
            "One {weather} night, a giant lay down behind the {place} and began to snore.",
        ),
        (
            "The windows shook, and {name} fell out of bed.",
            "It was so loud that {name} fell out of bed, and so did the cat.",
        ),
        (
            "So {name} ran to the {place} with a {adj} {object} and climbed up to the giant's ear.",
            "So {name} took a {adj} {object} and went to the {place} to see him.",
        ),
        PARAGRAPH,
        (
            "The {object} tickled his nose, and he sneezed until the {place} shook.",
            "Then {name} dropped the {object} on that big nose. Up he sat, and the {place} shook.",
        ),
        (
            '"You snore," said {name}. "Oh dear," said the giant. "Nobody ever told me."',
            '"Sorry," said {name}, "but you snore." The giant went red, up to the clouds.',
        ),
        (
            '"I only snore," he said, "when I have nothing to hold."',
            '"I lost my teddy," he said, "when I was small, like a house."',
        ),
        (
            "So {name} gave him the {object}, and he held it between two fingers.",
            "So {name} gave him the {object}, and he put it under his ear.",
        ),
        PARAGRAPH,
        (
            "Now the {place} is so quiet that {name} can hear the moon go by.",
            "Since that night everyone at the {place} sleeps well, and so does {name}.",
        ),
        (
            "And the giant has never let go of the {object}.",
            "Only sometimes the giant talks in his sleep, and he says, {object}.",
        ),
    ],
    "the mouse and her castle": [
        (
            "Once upon a time, {name} left a {adj} {object} at the {place}.",
            "On {day}, {name} lost a {adj} {object} at the {place}.",
        ),
        (
            "When {she} came back, a mouse was sitting on the {object}.",
            "The next day a mouse stood on the {object} and waved a tiny flag.",
        ),
        (
            '"This is my castle," said the mouse, "and I am the queen of the {place}."',
            '"Kneel down!" cried the mouse. "I am the queen of the {place}!"',
        ),
        (
            '"It is a {object}," said {name}, "and it is mine."',
            '"Dear queen," said {name}, "it is only my {object}."',
        ),
        PARAGRAPH,
        (
            "The mouse looked so {sad} that {name} had to think again.",
            "The mouse began to cry, and {name} did not know what to do.",
        ),
        (
            '"You may stay for one nut a week," {name} said.',
            '"A castle is not cheap," {name} said. "One nut a week?"',
        ),
        (
            '"That is a lot," said the mouse, "but one can see all the {place} from here."',
            '"Half a nut," said the mouse, "and I will keep the {place} safe from cats."',
        ),
        PARAGRAPH,
        (
            "Every {day} {name} finds a nut on the {object} at the {place}.",
            "Now {name} has to bow to the {object} at the {place}, but there are nuts.",
        ),
    ],
    "the parrot who only said no": [
        (
            "Once upon a time, a parrot at the {place} knew one word, and it was no.",
            "There was an old parrot at the {place} whose only word was no.",
        ),
        (
            "Everyone was tired of him, but {name} liked him.",
            'Only {name} liked him. "He is honest," {she} said.',
        ),
        (
            "One {weather} day, {name} lost {her} {adj} {object}.",
            "On {day}, {name} could not find a {adj} {object} anywhere.",
        ),
        PARAGRAPH,
        (
            '{She} asked the {person}. "Your {object}? Not at the {place}," he said.',
            '{She} asked the {person} of the {place}. "A {object}? Who knows?" he said.',
        ),
        (
            'So {name} asked the parrot. "Is my {object} at home?" "No."',
            '"Parrot," said {name}, "is my {object} in a tree?" "No."',
        ),
        (
            '"Is it behind the {place}?" "No." "Are you sitting on it?"',
            '"Did I leave it at the {place}?" "No." "Is it under you?"',
        ),
        PARAGRAPH,
        (
            "The parrot thought. Then he moved a little, and {name} saw the {object}.",
            "The parrot looked away. Then he lifted one foot, and {name} saw the {object}.",
        ),
        (
            '"Will you do it again?" asked {name}. "No," said the parrot, and the {place} laughed.',
            '"Are you sorry?" asked {name}. "Yes," said the parrot, and the {place} went quiet.',
        ),
    ],
    "the wind who learned to ask": [
        (
            "Once upon a time, the wind took {name}'s {adj} {object} at the {place}.",
            "One windy day, {name} lost a {adj} {object} at the {place}. The wind had it.",
        ),
        (
            '"Give me back my {object}!" shouted {name}.',
            '"That {object} is mine!" shouted {name} at the sky.',
        ),
        (
            "Nobody at the {place} had ever shouted at the wind before.",
            "The wind stopped. Nobody at the {place} had ever spoken to it like that.",
        ),
        PARAGRAPH,
        (
            "Down on the {place} came forty hats and one {object}.",
            "It rained socks on the {place}, and among them was the {object}.",
        ),
        (
            "A cow came down, too, looked at {name} and went home.",
            "A door fell down beside {name}, and the {person} was still holding on to it.",
        ),
        PARAGRAPH,
        (
            '"Thank you," said {name}. "You may borrow the {object} on {day}."',
            '"Next time," said {name}, "just ask me for the {object}."',
        ),
        (
            "Now when the wind comes to the {place}, it knocks first, and {name} says come in.",
            "Since then the wind at the {place} says please, and {name} says thank you.",
        ),
    ],
    "the moon who came to visit": [
        (
            "Once upon a time, the moon looked down and saw {name}'s {adj} {object}.",
            "One {weather} night, the moon saw {name} with a {adj} {object}.",
        ),
        (
            "It climbed down and stood in the middle of the {place}.",
            "It came down a ladder and knocked at the {place}.",
        ),
        (
            '"May I borrow your {object}, {name}?" it asked. "It is so dull up there."',
            '"Dear {name}, I never had a {object}," it said. "Only stars."',
        ),
        (
            "So {name} gave it the {object}, and it went up over the {place}.",
            '"Take it," said {name}, and the moon rose over the {place} with the {object}.',
        ),
        PARAGRAPH,
        (
            "For a week the {place} was dark, because the moon was playing.",
            "At the {place} it was dark for a week, and people fell over cows.",
        ),
        (
            "Then one morning {name} found the {object} by the bed.",
            "Then {name} got the {object} back, wrapped in a bit of cloud.",
        ),
        PARAGRAPH,
        (
            "Now it shines in the dark, and {name} can read in bed.",
            "It still glows a little, and {name} needs no lamp at night.",
        ),
        (
            "And the moon smiles when it passes the {place}.",
            "When the moon is late at the {place}, it is playing again.",
        ),
    ],
    "the goat who ate everything": [
        (
            "Once upon a time, a goat at the {place} ate everything.",
            "There was a goat at the {place}, and nothing was safe from her.",
        ),
        (
            "She ate the gate, and then she looked at {name}'s {adj} {object}.",
            "On {day}, she ate the {person}'s hat and looked at {name}'s {adj} {object}.",
        ),
        (
            '"Stop!" cried {name}, but the {object} was gone.',
            'One bite, and no more {object}. "Bad goat!" cried {name}.',
        ),
        PARAGRAPH,
        (
            "The goat smiled. Then all the {place} heard a strange noise.",
            "The goat sat down by the {place}. She did not look well.",
        ),
        (
            '"You should not eat so fast," said {name}, and patted her back.',
            "So {name} stood her on her head and counted to ten.",
        ),
        (
            "Out came two boots, a bit of the {place}, and then {name}'s {object}.",
            "Out came a hat, the gate of the {place} and {name}'s {object}, in that order.",
        ),
        PARAGRAPH,
        (
            "Now {name} gives her some {food} before she gets hungry.",
            "Now {name} tells her every morning what is food and what is not.",
        ),
        (
            "The {object} is still at the {place}, with one small bite in it.",
            "The {object} stands at the {place}, and it only smells a little of goat.",
        ),
    ],
    "the nose of the snowman": [
        (
            "Once upon a time, {name} made a snowman at the {place}.",
            "It had snowed, and {name} made a snowman at the {place}.",
        ),
        (
            "There was no carrot, so {name} gave him a {adj} {object} for a nose.",
            "For a nose {name} gave him {her} own {adj} {object}.",
        ),
        (
            '"It is a {object}," said the snowman, "but I like it."',
            '"I can smell nothing," said the snowman, "but what a {object}!"',
        ),
        (
            "Every evening {name} came to the {place} and told him about the sun.",
            "All winter {name} came to the {place}, and they talked about snow.",
        ),
        PARAGRAPH,
        (
            "Then it got warm at the {place}, and he grew small.",
            "Then spring came to the {place}, and he was only as big as a cat.",
        ),
        (
            '"Take the {object}, {name}," he said. "I will come back for it."',
            '"Do not cry, {name}," he said. "Keep the {object} for me."',
        ),
        PARAGRAPH,
        (
            "Next winter, when the first snow fell, {name} heard a knock.",
            "On the first cold morning, something tapped on {name}'s window.",
        ),
        (
            'There was nobody at the {place} but a snowman. "My {object}, please," he said.',
            'There he was, at the {place}. "Have you still got my {object}?" he asked.',
        ),
    ],
    "the bear who borrowed": [
        (
            "Once upon a time, a bear lived next to {name} at the {place}.",
            "One {weather} day, a bear moved in next to {name} at the {place}.",
        ),
        (
            "First he borrowed some {food}. Then he borrowed a table.",
            "He borrowed some {food}, and six cups, and then a table.",
        ),
        (
            'On {day}, he knocked again. "I need your {object}," he told {name}.',
            "The next day he asked {name} for {her} best {object}.",
        ),
        (
            "Not the {object}, thought {name}, but all the {place} heard him say please.",
            "It was the finest {object} at the {place}, but {name} gave it to him.",
        ),
        PARAGRAPH,
        (
            "Then {name} heard music behind the {place} and went to look.",
            "Then {name} heard a noise behind the {place}, and went there, very {sad}.",
        ),
        (
            "There stood the table, and on it stood the {object}, with a flower.",
            "There stood the {object}, with candles all round.",
        ),
        (
            '"Surprise, {name}!" cried the bear. "A party! I had no things of my own."',
            '"It is for you, {name}!" cried the bear. "I only had the idea."',
        ),
        PARAGRAPH,
        (
            "They danced at the {place} all night, and the {object} danced, too.",
            "It was the best party at the {place}. He gave back the {object}, but not the cups.",
        ),
    ],
    "the treasure map": [
        (
            "Once upon a time, {name} found a map with a cross on it, just by the {place}.",
            "On {day}, {name} found an old map with a cross behind the {place}.",
        ),
        (
            '"Gold!" said {name}, and dug a hole at the {place}.',
            '"We are rich!" said {name} to the cat, and dug a hole at the {place}.',
        ),
        (
            "All morning there was only a worm, and the worm was {sad}.",
            "There was mud, more mud, and a worm who wanted to sleep.",
        ),
        (
            "Then something went clonk. It was a {adj} {object}.",
            "At last there was something hard. It was a {adj} {object}.",
        ),
        PARAGRAPH,
        (
            '"I know that {object}," said {name}. "It is mine!"',
            'Now {name} went red. "That is my own old {object}," {she} said.',
        ),
        (
            "It was {name} who had hidden the {object} at the {place} and made the map.",
            "Last year {name} had put the {object} behind the {place} to keep it safe.",
        ),
        PARAGRAPH,
        (
            '"A hole!" said the {person}. "Just what I need for my tree."',
            "Then it rained, and the ducks moved into the hole.",
        ),
        (
            "So {name} took the {object} home and made a new map of the {place}.",
            "So {name} hid the {object} again, but not at the {place}.",
        ),
    ],
    "the ghost": [
        (
            "Once upon a time, people said there was a ghost at the {place}.",
            "Every night a ghost cried at the {place}, and nobody went there.",
        ),
        (
            "Only {name} was not afraid, and took a {adj} {object} along.",
            "But {name} had to go, because a {adj} {object} was still there.",
        ),
        (
            "Something white stood behind the {place}, and {name} held the {object} tight.",
            "Something white came round the {place}. The {object} shook, and so did {name}.",
        ),
        (
            '"Boo," it said, and then it said, "Baa."',
            '"Whooo," it said. "Whooo has seen my mother?"',
        ),
        PARAGRAPH,
        (
            '"You are a sheep!" said {name}, and sat down on the {object}.',
            "So {name} put down the {object} and felt wool. It was a sheep.",
        ),
        (
            '"I am lost," it said. "I ask and ask at the {place}, but they all run away."',
            '"I only want to know the way out of the {place}," it said.',
        ),
        PARAGRAPH,
        (
            "So {name} took it home, with the {object} on its back.",
            "So {name} tied the {object} round its neck and led it home.",
        ),
        (
            "Now it is quiet at the {place}, and {name} almost misses the ghost.",
            "If {name} hears a noise at the {place} now, it must be a real ghost.",
        ),
    ],
    "the duck instead": [
        (
            "Once upon a time, Grandmother sent {name} to the {place} to get a {object}.",
            "On {day}, Grandmother told {name} to get a {object} at the {place}.",
        ),
        (
            'All the way {name} said, "A {object}. A {object}."',
            'All the way {name} sang, "A {object}, a {object}, la la la!"',
        ),
        (
            "But near the {place} {name} fell over a duck, and forgot everything.",
            "But at the {place} a duck said hello, and {name} forgot everything.",
        ),
        PARAGRAPH,
        (
            '"It was something nice," {name} told the {person} of the {place}.',
            "So {name} stood at the {place} and thought, until {her} ears were hot.",
        ),
        (
            "In the end {she} took the duck, just to be safe.",
            "It got late, and so {she} went home with the duck.",
        ),
        (
            'Grandmother looked at {name}. "This is not a {object}," she said.',
            '"Dear {name}," said Grandmother, "that is a funny {object}."',
        ),
        PARAGRAPH,
        (
            "But the duck was so {glad} that it could stay.",
            "But the duck put its head in her lap, and so it stayed.",
        ),
        (
            "Tomorrow they will all go to the {place}, and the duck will do the talking.",
            "They never got one from the {place}, but every day they had an egg.",
        ),
    ],
    "hide and seek": [
        (
            "Once upon a time, {name} took a {adj} {object} along to play hide and seek.",
            "On {day}, {name} played hide and seek, and took a {adj} {object} along.",
        ),
        (
            "At the {place} {name} hid behind a barrel and held the {object} tight.",
            "There was a dark corner at the {place}, and {name} sat there on the {object}.",
        ),
        (
            "It was warm and quiet there, and {name} fell asleep.",
            "Nobody came for a long time, and {name} fell asleep.",
        ),
        PARAGRAPH,
        (
            "Soon the whole {place} was looking for {name}, even the {person}.",
            '"Where is {name}?" people called all over the {place}.',
        ),
        (
            "They found a hen, two boots and an uncle.",
            "They looked in the oven, in the well, and under an uncle.",
        ),
        (
            "Then a crash shook the {place}, because the {object} had got bored.",
            "Then the {object} fell over, and all the {place} heard it.",
        ),
        PARAGRAPH,
        (
            '"Have I won?" asked {name}, and picked up the {object}.',
            "Out came {name} with the {object}, and asked if it was time for supper.",
        ),
        (
            "It was the best game that the {place} had ever seen.",
            "The cat, who had played too, is still hiding at the {place}.",
        ),
    ],
    "the star that fell": [
        (
            "Once upon a time, a little star fell down behind the {place}.",
            "One {weather} night, a little star fell down near the {place}.",
        ),
        (
            'It cried so loudly that {name} woke up. "I want to go home," it said.',
            'Only {name} heard it cry. "I was not holding on," it said.',
        ),
        (
            "So {name} took it to the {place} on a {adj} {object} and blew on it.",
            "It was cold at the {place}, so {name} let it sleep on a {adj} {object}.",
        ),
        PARAGRAPH,
        (
            "All the {place} came to help, but the sky was too far.",
            "They tried the tallest man at the {place}, but he was not tall enough.",
        ),
        (
            'Then {name} had an idea. "Sit on the {object}," {she} said.',
            '"Hold on to the {object}," said {name}. "One, two, three!"',
        ),
        (
            "Then {name} threw, and the {object} and the star flew up, and up, and up.",
            "And {name} threw the {object} and the star as high as the moon.",
        ),
        PARAGRAPH,
        (
            "The {object} came down again, and now it glows at night.",
            "Only the {object} came back, and it was still warm.",
        ),
        (
            'Over the {place} one star says, "Good night, {name}."',
            "And one star over the {place} always waves at {name}.",
        ),
    ],
    "the king who was bored": [
        (
            "Once upon a time, the king came to see the {place}.",
            "On {day}, the king came to the {place}, with all his dukes.",
        ),
        (
            "The king looked at all the {place} and yawned.",
            "The {person} of the {place} made a speech, and the king yawned.",
        ),
        (
            "Then {name} dropped a {adj} {object}, and the king sat down on it.",
            'Then the king fell over a {adj} {object}, and {name} cried, "Oh no!"',
        ),
        PARAGRAPH,
        (
            'Nobody at the {place} spoke. "What is it?" asked the king, and held up the {object}.',
            'The {place} was very quiet. "Whose {object} is this?" asked the king.',
        ),
        (
            '"It is my {object}," said {name}, "and you are my king."',
            '"Mine," said {name}. "Please do not send the {object} to prison."',
        ),
        (
            "The king laughed until his crown fell off.",
            "First the king smiled, and then he laughed so loudly that the dukes ran away.",
        ),
        PARAGRAPH,
        (
            "All day he and {name} played with the {object} at the {place}.",
            "So {name} and the king took the {object} and ran round the {place} with it.",
        ),
        (
            "He told {name} that it was the best speech of all.",
            "At supper he asked {name} if he could stay till {day}.",
        ),
    ],
    "the dragon who had no birthday": [
        (
            "Once upon a time, a dragon lived near the {place}, and everyone was afraid.",
            "There was a dragon near the {place}, and it roared every {day}.",
        ),
        (
            "It roared and roared, until {name} went up to ask why.",
            "One {weather} day, {name} went up and knocked on its nose.",
        ),
        (
            '"I am a hundred," it said, "and nobody from the {place} ever gave me a {object}."',
            '"It is my birthday," it said, "and all the {place} has a {object} but me."',
        ),
        (
            '"Is that all?" said {name}, and ran to get {her} own {object}.',
            "So {name} took {her} own {adj} {object} and tied a bow on it.",
        ),
        PARAGRAPH,
        (
            "The dragon took the {object} in its claws and could not speak.",
            '"For me?" said the dragon, and hugged the {object}.',
        ),
        (
            "It cried hot tears all over the {place}, and {name} had a bath in them.",
            "It was so {glad} that smoke rose over the {place}, and {name} coughed.",
        ),
        PARAGRAPH,
        (
            "Now it lights the candles at the {place}, all of them at once.",
            "Now it makes toast for the whole {place}, a bit dark, but with love.",
        ),
        (
            "And at night {name} can hear it talk to the {object}.",
            "And when {name} comes by, it shows {him} the {object} again.",
        ),
    ],
    "the echo": [
        (
            "Once upon a time, an echo lived at the {place}, and it was rude.",
            "There was a rude echo at the {place}, and people stayed away.",
        ),
        (
            '"Hello!" called {name}, who was looking for a {adj} {object}.',
            'On {day}, {name} called, "Who has seen my {object}?"',
        ),
        (
            '"Silly {object}!" said the echo, and all the {place} heard it.',
            '"Your {object} is ugly!" the echo called across the {place}.',
        ),
        PARAGRAPH,
        (
            'First {name} was {sad}. Then {name} said, "I like your voice."',
            'But {name} only laughed. "You sing so well," said {name}.',
        ),
        (
            "The echo was quiet. Nobody at the {place} had ever said that.",
            "The {place} was quiet. The echo did not know what to say.",
        ),
        (
            '"Well," it said, "I did see a {object}. Look behind you."',
            '"Do I?" it asked softly. "Oh, and your {object} is behind you."',
        ),
        PARAGRAPH,
        (
            "There it was. So {name} took the {object}, and they sang together.",
            "It was true, and {name} hugged the {object} and sang a song.",
        ),
        (
            "The echo at the {place} is polite now, and it even says bless you.",
            "Now people come to the {place} just to hear how nice they are.",
        ),
    ],
    "the baby who would not stop": [
        (
            "Once upon a time, {name} had a baby brother who cried all day at the {place}.",
            "One {weather} day at the {place}, {name}'s baby brother began to cry.",
        ),
        (
            "They gave him some {food}, but he cried even more.",
            "The {person} sang to him, and he cried even more.",
        ),
        (
            "They could hear him from the {place} to the sea.",
            "The birds left the {place}, and so did the mice.",
        ),
        (
            "Then {name} got {her} {adj} {object} and held it up.",
            '"Look, a {object}!" said {name}, but he did not look.',
        ),
        PARAGRAPH,
        (
            "Then {name} fell over the cat, and the {object} flew into the soup.",
            "Then {name} had to sneeze, and the {object} landed in the soup.",
        ),
        (
            '"My {object}!" cried {name}, and soup ran down {her} nose.',
            "There was soup on {name}, and soup on the {object}, and soup on the uncles.",
        ),
        (
            "The {place} was still. The baby looked. Then he laughed.",
            "The baby stopped. Then, for the first time, the {place} heard him laugh.",
        ),
        PARAGRAPH,
        (
            "Now {name} takes a {object} and some soup to the {place} every day.",
            "His first word was {object}, and he said it to {name} at the {place}.",
        ),
    ],
    "the rumour": [
        (
            "Once upon a time, {name} told everyone that {her} {object} once belonged to a queen.",
            "On {day}, {name} said that {her} {adj} {object} came from a queen.",
        ),
        (
            "It was not true, but people at the {place} bowed to it.",
            "Soon all the {place} came to see it, and some of them cried.",
        ),
        (
            "Then a man in gold came to the {place} and knocked.",
            "Then a man with a big hat stood in the middle of the {place}.",
        ),
        (
            '"The queen wants her {object} back," he told {name}.',
            '"I come from the queen, {name}," he said. "Where is her {object}?"',
        ),
        PARAGRAPH,
        (
            'Then {name} went red. "I made it up. It is only a {object}," {she} said.',
            '"I am sorry," said {name}. "My {object} is just from the shop."',
        ),
        (
            'The man went red, too. "And I am only the {person} of the {place}," he said.',
            '"Oh good," said the man. "No queen sent me, only my aunt at the {place}."',
        ),
        PARAGRAPH,
        (
            "They laughed so much that {name} fell off the {object}.",
            "So {name} made some {food}, and they ate it next to the {object}.",
        ),
        (
            "But at the {place} people still bow, just in case.",
            "And the next day a real queen stood at the {place}. That is another story.",
        ),
    ],
    "the trade": [
        (
            "Once upon a time, {name} took a {object} to the {place} and swapped it for a hen.",
            "On {day}, {name} went to the {place} and swapped a {object} for a fat hen.",
        ),
        (
            "But {name} swapped the hen for a pig, because the pig smiled.",
            "The hen was dull, so {name} swapped it for a pig.",
        ),
        (
            "Then {name} gave the pig for a horse with only one ear.",
            "Then {name} gave the pig to the {person} and got a horse.",
        ),
        PARAGRAPH,
        (
            "The horse ate flowers all over the {place} and sat on a bishop.",
            "The horse did not like the {place}, and it bit three people.",
        ),
        (
            '"I want my {object} back," thought {name}.',
            '"A {object} never bites anyone," said {name} with a sigh.',
        ),
        (
            'A man came to the {place}. "I have only a {object}," he said, "but I need a horse."',
            '"What a horse!" said a man from the {place}. "I can give you a {object} for it."',
        ),
        PARAGRAPH,
        (
            "It was the very same {object}. So {name} was rich again.",
            "And so {name} came home with the very same {object}.",
        ),
        (
            "They still talk about it at the {place}, most of all the pig.",
            "It had been a good day at the {place}, and only the horse was {sad}.",
        ),
    ],
    "looking everywhere": [
        (
            "Once upon a time, {name} lost a {adj} {object} and went to look at the {place}.",
            "One {weather} morning, {name} lost a {adj} {object} somewhere at the {place}.",
        ),
        (
            '"Have you seen my {object}?" {name} asked the {person}, but he only smiled.',
            'A hen came by. "Have you got my {object}?" asked {name}. It had not.',
        ),
        (
            "So {name} looked under every stone at the {place}.",
            "So {name} turned the whole {place} upside down, and shook it.",
        ),
        (
            "Then {name} sat down and began to feel {sad}.",
            "Then {name} sat on a wall and said a very long word.",
        ),
        PARAGRAPH,
        (
            'A cat looked up. "What is that in your hand?" she asked.',
            '"May I ask something?" said a cat. "What are you holding?"',
        ),
        (
            '"This? This is just my {object}," said {name}.',
            '"Only my {object}," said {name}, "I always hold it when I look for things."',
        ),
        (
            "It was quiet at the {place} for a long time.",
            "Nobody spoke, and somewhere behind the {place} a bird laughed.",
        ),
        PARAGRAPH,
        (
            "Now the {object} has a long string, and the cat at the {place} gets fish.",
            "So the {object} was found, and the cat became mayor of the {place}.",
        ),
    ],
    "the owl who could not sleep": [
        (
            "Once upon a time, an owl at the {place} could not sleep by day.",
            "There was an owl at the {place}, and every morning she wanted to sleep.",
        ),
        (
            "But then {name} always came with a {adj} {object} and made a noise.",
            "But right under her tree {name} played with a {adj} {object}, and sang.",
        ),
        (
            '"Dear {name}," said the owl, "what is that {object} for?"',
            '"Must that {object} be so loud, {name}?" asked the owl.',
        ),
        PARAGRAPH,
        (
            '"I will tell you a story," said {name}.',
            '"Sorry," said {name}, and sat down to tell her a story.',
        ),
        (
            "It was about a {object} who wanted to see the {place}.",
            "It was about a {object} at the {place} and a hundred sheep.",
        ),
        (
            "It was so long and so dull that all the {place} began to yawn.",
            "At the end of it the {person} was asleep, and half the {place}, too.",
        ),
        (
            "The owl slept. Then {name} slept, with {her} head on the {object}.",
            "The owl closed one eye, then two, and {name} lay down by the {object}.",
        ),
        PARAGRAPH,
        (
            "Now she wants the same story every {day}, and the {place} has to be quiet.",
            "Only the last sheep was still awake, and it walked home past the {place}.",
        ),
    ],
}


@dataclass(frozen=True)
class Choices:
    """All that was drawn for one story; `tell` turns it into text and `parse` gets it back."""

    skeleton: str
    name: str
    object: str
    place: str
    phrasings: tuple[int, ...]  # one index for each position
    words: tuple[str, ...]  # the other slots, in the order of the text


def slots_of(sentence: str) -> list[str]:
    return re.findall(r"\{(\w+)\}", sentence)


def is_drawn_in_place(slot: str) -> bool:
    return slot not in REPEATED and slot not in PRONOUNS


def pick(rng: Random, options):
    # random() is the one method whose stream Python promises to keep; choice() may change.
    return options[int(rng.random() * len(options))]


def draw(rng: Random) -> Choices:
    """Draw the choices of one story, each uniformly and independently of the others."""
    skeleton = pick(rng, list(SKELETONS))
    repeated = {slot: pick(rng, LISTS[slot]) for slot in REPEATED}
    phrasings, words = [], []
    for alternatives in SKELETONS[skeleton]:
        phrasings.append(pick(rng, range(len(alternatives))))
        slots = slots_of(alternatives[phrasings[-1]])
        words += [pick(rng, LISTS[slot]) for slot in slots if is_drawn_in_place(slot)]
    return Choices(skeleton, **repeated, phrasings=tuple(phrasings), words=tuple(words))


def tell(choices: Choices) -> str:
    """Write the story that these choices make: paragraphs of ASCII separated by one newline."""
    fixed = {slot: getattr(choices, slot) for slot in REPEATED}
    fixed |= {slot: pronoun(slot, choices.name) for slot in PRONOUNS}
    words = iter(choices.words)
    positions = zip(SKELETONS[choices.skeleton], choices.phrasings, strict=True)
    text = " ".join(alternatives[phrasing] for alternatives, phrasing in positions)
    text = re.sub(r"\{(\w+)\}", lambda slot: fixed.get(slot[1]) or next(words), text)
    return text.replace(" \n ", "\n")


def pronoun(slot: str, name: str) -> str:
    return PRONOUNS[slot][name in BOYS]


def stories(count: int, seed: int) -> list[str]:
    """Return `count` stories; the same seed gives the same ones, and a longer list begins alike."""
    rng = Random(seed)
    return [tell(draw(rng)) for _ in range(count)]


def entropy() -> float:
    """Return the exact entropy of a story in nats: the mean of -ln p over all choices."""
    nats = math.log(len(SKELETONS)) + sum(math.log(len(LISTS[slot])) for slot in REPEATED)
    for positions in SKELETONS.values():
        for alternatives in positions:
            drawn = filter(is_drawn_in_place, slots_of(" ".join(alternatives)))
            words = sum(math.log(len(LISTS[slot])) for slot in drawn) / len(alternatives)
            nats += (math.log(len(alternatives)) + words) / len(SKELETONS)
    return nats


@cache
def pattern(sentence: str) -> re.Pattern:
    # A slot matches any one word and is looked up in its list later: that keeps a pattern short,
    # and with a fixed text after every slot there is nothing to backtrack into.
    pieces = re.split(r"\{\w+\}", sentence)
    return re.compile("([A-Za-z]+)".join(map(re.escape, pieces)) + " ")


def allowed(slot: str, word: str) -> bool:
    return word in (PRONOUNS.get(slot) or LISTS[slot])


def readings(text: str) -> list[tuple[str, tuple[int, ...], list[tuple[str, str]]]]:
    """Return each way to read a text, sentence by sentence: skeleton, phrasings, (slot, word)s.

    Every occurrence of a slot is free here: a story that forgets its name can still be read.
    """
    text = text.replace("\n", " \n ") + " "
    found = []
    for skeleton, positions in SKELETONS.items():
        partial: list[tuple[int, tuple[int, ...], list[tuple[str, str]]]] = [
            (0, (), [])
        ]  # (characters read, phrasings, slots)
        for alternatives in positions:
            longer = []
            for start, phrasings, slots in partial:
                for index, sentence in enumerate(alternatives):
                    if match := pattern(sentence).match(text, start):
                        new = list(zip(slots_of(sentence), match.groups(), strict=True))
                        if all(allowed(slot, word) for slot, word in new):
                            longer.append((match.end(), (*phrasings, index), slots + new))
            partial = longer
        found += [(skeleton, these, slots) for end, these, slots in partial if end == len(text)]
    return found


def disagreements(slots: list[tuple[str, str]]) -> list[str]:
    """Return which of name, object and place change within a story; pronouns count as the name."""
    failed = [kind for kind in REPEATED if len({word for slot, word in slots if slot == kind}) > 1]
    name = next(word for slot, word in slots if slot == "name")
    agree = all(word == pronoun(slot, name) for slot, word in slots if slot in PRONOUNS)
    return failed if agree or "name" in failed else ["name", *failed]


def parse(text: str) -> Choices:
    """Return the choices that made a story; ValueError if the grammar cannot make this text."""
    for skeleton, phrasings, slots in readings(text):
        if not disagreements(slots):
            repeated = {slot: word for slot, word in slots if slot in REPEATED}
            words = tuple(word for slot, word in slots if is_drawn_in_place(slot))
            return Choices(skeleton, **repeated, phrasings=phrasings, words=words)
    raise ValueError(f"no skeleton makes this text, check() says why: {text[:60]!r}")


def check(text: str) -> list[str]:
    """Return what fails, out of "grammar", "name", "object" and "place"; [] for a sound story."""
    failures = [disagreements(slots) for _, _, slots in readings(text)]
    return min(failures, key=len, default=["grammar"])
